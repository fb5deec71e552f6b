// Package nodeapi shows many and long-lived clients of the node: terminals, files, logs, port forwarding.
package nodeapi
