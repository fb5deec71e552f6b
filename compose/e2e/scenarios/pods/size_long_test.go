//go:build long

package pods

// What a long run is made of.
const (
	crowdPods  = 60
	randomPods = 3000
)
