// Package nodepods keeps the pods of the node as podsync publishes them on the bus.
//
// A View decodes each entry of the buckets PODS and POD_STATUS once, when it changes, and joins the two by the pod's
// UID:
//
//   - A pod is there from its entry in PODS until podsync deletes that entry. A status without a pod is not shown.
//   - The view is complete while Synced returns true. While the bus is away, it keeps the last pods.
//   - A pod that cannot be decoded stays in the view, with an error instead of its fields, since something of it may
//     run. The view logs the error once for each change.
//   - Readers share the pods and must not change them. A pod that changes is another Pod, so that a reader which keeps
//     an old one keeps all that it points to.
package nodepods
