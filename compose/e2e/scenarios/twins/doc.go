// Package twins runs the same node with the kubelet and with microlet, and compares pods and metrics.
package twins
