// Package blockdevice maps a block device for a pod, in the kubelet's places and form.
//
// A Mapping is three things: a bind mount of the device's file, in the folder of the volume; a link to the device, in
// the pod's folder, which the runtime gets; and a loop device over the bind mount. The loop device keeps the
// device open: without it the device could be removed and another one get its name, and the runtime would give that one
// to the pod.
//
// All of it touches the device, which may hang: it runs in a child process. Each step may be repeated after a
// child that was killed.
package blockdevice
