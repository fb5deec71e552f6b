module github.com/microlet/microlet/services/stats/test

go 1.26.0

replace (
	github.com/microlet/microlet/proto => ../../../proto
	github.com/microlet/microlet/services/bus => ../../bus
	github.com/microlet/microlet/services/bus/bustest => ../../bus/bustest
	github.com/microlet/microlet/services/internal => ../../internal
	github.com/microlet/microlet/services/internal/testing => ../../internal/testing
	github.com/microlet/microlet/services/stats => ..
)
