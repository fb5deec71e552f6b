// Package removal removes folders that other users can write to, such as those of a pod or a service.
//
// It looks up every name in an open folder. So it follows no symbolic link, enters no mount and fails at no path
// length, whatever other processes do in the folder meanwhile. The number of open files does not grow with the
// depth. After an error, another call continues where the first one stopped. Only root may change the parent of the
// folder.
package removal
