// Package criconfig turns a pod into CRI messages: a PodSandboxConfig and one ContainerConfig per container.
//
// Labels, annotations, container hashes, paths and settings are those of the kubelet 1.37, so neither agent sees a
// container of the other as changed. Where CRI defines no order, the order is stable: the same pod gives the same
// message. Builder also creates the folders and files that the messages name: the pod's data folder, log folders,
// /etc/hosts, termination-log files and files of long annotations.
package criconfig
