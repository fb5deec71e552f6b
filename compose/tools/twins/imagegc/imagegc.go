// Package imagegc opens the collector of images to the comparison with the kubelet's.
package imagegc

import (
	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/collector"
	"github.com/microlet/microlet/services/imagegc/internal/imagefs"
	"github.com/microlet/microlet/services/imagegc/internal/imagenames"
)

type (
	// Options are those of a collector.
	Options = collector.Options
	// Age is that of an image.
	Age = ages.Age
	// Usage is that of a file system.
	Usage = imagefs.Usage
	// Names are those of images.
	Names = imagenames.Set
)

// New is collector.New.
func New(o Options) *collector.Collector { return collector.New(o) }

// Normal is imagenames.Normal.
func Normal(name string) string { return imagenames.Normal(name) }
