// Package basic is the one scenario that every kind of node runs: a Deployment's pods run with all that a pod is given,
// and leave nothing.
package basic
