module github.com/microlet/microlet/compose/tools/metricsdoc

go 1.26.0
