// Package podutil answers questions about a Pod object: its kind, its containers and its QoS class.
//
// It depends on nothing but the object. Its rules are the kubelet's.
package podutil
