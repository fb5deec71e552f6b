// Package grants asks the service resources for what pods need of the node beside CPU time and memory: the devices of
// device plugins today.
//
// It asks only for pods with extended resources in their limits, always with a deadline and never under a lock. Answers
// are kept, so that a container starts again without a question. After a restart of podsync it asks once more: what the
// bus has in RESOURCES may go into a status, not into a container. It passes device plugins of the folder
// plugins_registry on to resources.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package grants
