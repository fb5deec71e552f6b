// Package container makes the node that the containers of compose.yaml share.
package container
