module github.com/microlet/microlet/compose/tools/mutation

go 1.26.0
