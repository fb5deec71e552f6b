// Package traces shows what a collector gets of a pod's start, and that no pod waits for it.
package traces
