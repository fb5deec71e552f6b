// Package charts installs the Helm charts on a node, with the real Helm.
package charts
