//go:build !long

package pods

// What a short run is made of: it shows each thing once.
const (
	crowdPods  = 15
	randomPods = 200
)
