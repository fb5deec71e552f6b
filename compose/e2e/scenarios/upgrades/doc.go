// Package upgrades puts another build of microlet under a node that has pods.
package upgrades
