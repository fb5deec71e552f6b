// Package test tests whole rigs on this machine.
//
// Its tests have the build tag long, because they need root, the built programs (rig build --with kubelet) and about
// two minutes:
//
//	go test -tags long -count=1 -v ./test
package test
