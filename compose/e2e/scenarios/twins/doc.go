// Package twins compares the pods and metrics of the same node with the kubelet and with microlet.
package twins
