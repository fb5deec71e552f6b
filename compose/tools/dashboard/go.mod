module github.com/microlet/microlet/compose/tools/dashboard

go 1.26.0

require (
	github.com/dustin/go-humanize v1.1.0
	github.com/go-analyze/charts v0.6.4
	github.com/prometheus/client_golang v1.25.0
	github.com/prometheus/common v0.73.1
)

require (
	github.com/go-analyze/bulk v0.1.6 // indirect
	github.com/golang/freetype v0.0.0-20170609003504-e2365dfdc4a0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	golang.org/x/image v0.45.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
