module github.com/microlet/microlet/compose/tools/screens

go 1.26.0
