// Package benches measures microlet beside the kubelet, or beside another build of microlet, and prints tables.
package benches
