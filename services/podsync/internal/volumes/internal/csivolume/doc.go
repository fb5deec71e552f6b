// Package csivolume gives pods the volumes of CSI drivers.
//
// A persistent volume is staged once on the node and published to each pod; an inline volume is published alone. What
// is published of a block volume is mapped, too (package blockdevice). Folders and the files vol_data.json have the
// kubelet's places and form, so that either agent takes over what the other has mounted. A file is written before the
// call that it describes: if a process is killed between two calls, the next one finds on disk what to repeat or to
// undo.
//
// Of the calls on one volume one runs at a time. A call of a driver goes on when its caller gives up, since the pod is
// deleted for example, and the volume stays locked until the driver has answered or the call has reached its deadline.
// What the driver answers then is lost, and the next caller repeats the call or undoes it. A volume that no pod of the
// node has any more is unstaged.
package csivolume
