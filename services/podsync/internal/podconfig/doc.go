// Package podconfig turns a pod into what CRI takes: a PodSandboxConfig and a
// ContainerConfig for each container.
//
// Inputs are the pod, the node's settings (Node), the pod's addresses, mounted volumes and
// the objects that its environment names. Outputs are the two CRI messages and, made by
// Builder on the way, the folders and files that they name: the pod's data folder, its log
// folders, its /etc/hosts and its termination-log files.
//
// It guarantees that labels, annotations, container hashes, paths and settings are the
// kubelet's of version 1.37, so that a node can be handed from a kubelet to this program
// and back and neither takes a running container for a changed one. What CRI leaves open
// is in a stable order: the same pod gives the same message.
package podconfig
