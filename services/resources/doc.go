// Package resources hands out what the node has beside CPU time and memory: today the devices of device plugins.
//
// It is the device manager of the kubelet as a process of its own, which may hang, die or be replaced while pods that
// want nothing of it start and run as ever. Device plugins register on device-plugins/kubelet.sock, or through podsync
// if their sockets are in plugins_registry. podsync asks over gRPC for the grant of a pod that needs devices. What is
// granted is in the kubelet's file kubelet_internal_checkpoint before podsync learns of it.
//
// It puts RESOURCES/<podUID>, what each container was granted, and NODE/resources, from which nodestatus fills the
// extended resources of the Node. Programs of the node read the grants from the podresources API at
// pod-resources/kubelet.sock. It reads the pods in PODS and POD_STATUS.
//
// It runs on demand: a node without device plugins, and without readers of podresources, has no process of it. When it
// is down, pods that were granted something run on and are restarted, and a new pod that needs something waits.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package resources
