package images

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"k8s.io/kubernetes/pkg/kubelet/container"
)

// TwinImages is an image manager that has seen images before.
type TwinImages struct{ m *realImageGCManager }

// NewTwinImages returns one. Nil is an image that no container has used.
func NewTwinImages(runtime container.Runtime, stats StatsProvider, recorder record.EventRecorder, policy ImageGCPolicy,
	detected map[string]time.Time, used map[string]time.Time) (*TwinImages, error) {
	m, err := NewImageGCManager(runtime, stats, nil, recorder, &v1.ObjectReference{}, policy, noop.NewTracerProvider())
	if err != nil {
		return nil, err
	}
	t := &TwinImages{m.(*realImageGCManager)}
	for id, at := range detected {
		t.m.imageRecords[id] = &imageRecord{firstDetected: at, lastUsed: used[id]}
	}
	return t, nil
}

// Collect is GarbageCollect.
func (t *TwinImages) Collect(ctx context.Context, began time.Time) error {
	return t.m.GarbageCollect(ctx, began)
}

// CollectSparing is GarbageCollect, but these images are not judged by their age.
func (t *TwinImages) CollectSparing(ctx context.Context, began time.Time, spared map[string]bool) error {
	now := time.Now()
	images, err := t.m.imagesInEvictionOrder(ctx, now)
	if err != nil {
		return err
	}
	images = slices.DeleteFunc(images, func(i evictionInfo) bool { return spared[i.id] })
	if _, err := t.m.freeOldImages(ctx, images, now, began); err != nil {
		return err
	}
	t.m.policy.MaxAge = 0
	return t.m.GarbageCollect(ctx, began)
}

// DeleteUnused is DeleteUnusedImages.
func (t *TwinImages) DeleteUnused(ctx context.Context) error { return t.m.DeleteUnusedImages(ctx) }
