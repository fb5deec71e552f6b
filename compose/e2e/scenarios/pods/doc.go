// Package pods shows what becomes of a pod on the node, and what kubectl shows of it.
package pods
