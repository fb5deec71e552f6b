// Package objects reads the API objects that pods reference: Secrets, ConfigMaps, service account tokens and
// Services.
//
// Its client acts as the node, and the Node authorizer lets the node read the objects of its own pods by name.
// Errors of the API are unchanged, so "not found" reads as in the kubelet. Every call has a timeout. Many pods that
// start at the same time with the same object share requests, of which one is under way at a time. A pod that starts
// sees its objects as of that moment or later, or as of the watch that another pod already has. With the strategy
// Watch, a pod wakes when an object changes. An immutable object is no longer watched. It is read once more when a new
// pod names it, because it may have been deleted and created again; pods that run then get the new one too.
package objects
