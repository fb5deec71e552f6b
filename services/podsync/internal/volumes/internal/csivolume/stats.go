package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNotMeasured is the error of a volume that is not measured.
var ErrNotMeasured = errors.New("the volume is not measured")

// Usage says how full a volume is; 0 is unknown.
type Usage struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Usage asks the driver of a volume that the pod has; name is that of its folder. It takes no part in the calls on the
// volume that change it: a driver that hangs holds up no other call.
func (vs *Volumes) Usage(ctx context.Context, pod types.UID, name string) (Usage, error) {
	data, err := load(vs.layout.volume(pod, name))
	if err != nil {
		return Usage{}, err
	}
	return vs.measure(ctx, data, vs.layout.target(pod, name))
}

// BlockUsage is Usage of a block volume that the pod has; pv is the name of its PersistentVolume. The driver reports
// its size.
func (vs *Volumes) BlockUsage(ctx context.Context, pod types.UID, pv string) (Usage, error) {
	data, err := load(vs.layout.blockData(pv))
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, fmt.Errorf("%w: it is no driver's", ErrNotMeasured)
	}
	if err != nil {
		return Usage{}, err
	}
	return vs.measure(ctx, data, vs.layout.blockTarget(pod, pv))
}

func (vs *Volumes) measure(ctx context.Context, data volumeData, path string) (Usage, error) {
	driver, err := vs.o.Drivers.Driver(data.Driver)
	if err != nil {
		return Usage{}, err
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return Usage{}, err
	}
	if !can.Measures() {
		return Usage{}, fmt.Errorf("%w by CSI driver %s", ErrNotMeasured, data.Driver)
	}
	list, err := driver.Stats(ctx, data.Handle, path)
	if err != nil {
		return Usage{}, err
	}
	if len(list) == 0 {
		return Usage{}, fmt.Errorf("CSI driver %s says nothing of volume %s", data.Driver, data.Handle)
	}
	return usage(list), nil
}

func usage(list []*csi.VolumeUsage) (u Usage) {
	for _, part := range list {
		switch part.GetUnit() {
		case csi.VolumeUsage_BYTES:
			u.Capacity, u.Available, u.Used = count(part.GetTotal()), count(part.GetAvailable()), count(part.GetUsed())
		case csi.VolumeUsage_INODES:
			u.Inodes, u.InodesFree, u.InodesUsed = count(part.GetTotal()), count(part.GetAvailable()), count(part.GetUsed())
		}
	}
	return u
}

// count is what a driver counts; less than nothing is unknown.
func count(n int64) uint64 { return uint64(max(n, 0)) }
