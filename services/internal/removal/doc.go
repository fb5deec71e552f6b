// Package removal removes folders that others could write: the containers of a pod, or a service.
//
// Input: the path of a folder whose parent only root can change. Output: the folder is gone with
// all that is in it, or an error names what could not be removed; what was removed before the
// error stays removed, and a further call goes on from there.
//
// Guarantees: every name is looked up in an open folder, so that no symbolic link is followed, no
// mount is entered and no length of a path fails, whatever their owners' processes do meanwhile. The
// number of open files does not grow with the depth.
package removal
