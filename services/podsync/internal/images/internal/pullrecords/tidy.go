package pullrecords

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// tidyEvery is the interval of the kubelet's image garbage collection, which prunes the records.
	tidyEvery = 5 * time.Minute
	// settleAfter is how long a pull may still go on in the runtime after its caller is gone.
	settleAfter = time.Minute
)

// Images of the runtime, by their references.
type Images interface {
	// ImageRefs returns those of all images.
	ImageRefs(ctx context.Context) ([]string, error)
	// ImageRef returns that of an image by its name; empty if it is not there.
	ImageRef(ctx context.Context, image string) (string, error)
}

// Tidy keeps the records in line with the images until ctx ends.
func (r *Records) Tidy(ctx context.Context, images Images) error {
	ticker := time.NewTicker(tidyEvery)
	defer ticker.Stop()
	for {
		if err := r.tidy(ctx, images); err != nil && ctx.Err() == nil {
			r.log.Warn("records of image pulls are not all in line with the images", logkey.Err, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Records) tidy(ctx context.Context, images Images) error {
	r.mu.Lock()
	ends := make(map[string]time.Time, len(r.unsettled))
	for image, since := range r.unsettled {
		if r.underway[image] == 0 {
			ends[image] = since
		}
	}
	r.mu.Unlock()
	var errs []error
	for image, since := range ends {
		ref, err := images.ImageRef(ctx, image)
		if err != nil {
			errs = append(errs, fmt.Errorf("image %s: %w", image, err))
			continue
		}
		errs = append(errs, r.found(image, ref, since))
	}
	return errors.Join(append(errs, r.prune(ctx, images))...)
}

// found ends a pull with an unknown result, now that the runtime has said what it has.
func (r *Records) found(image, ref string, since time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unsettled[image] != since || r.underway[image] > 0 {
		return nil // it was pulled again meanwhile
	}
	if ref == "" {
		if time.Since(since) < settleAfter {
			return nil
		}
	} else if err := r.record(image, ref, nil); err != nil {
		// The credentials of the pull are unknown, so the next pod needs its own.
		return err
	}
	delete(r.unsettled, image)
	r.settle(image)
	return nil
}

// prune removes the records of images that are gone.
func (r *Records) prune(ctx context.Context, images Images) error {
	r.mu.Lock()
	r.recent.Clear()
	r.mu.Unlock()
	refs, err := images.ImageRefs(ctx)
	if err != nil {
		return err
	}
	present := sets.New(refs...)
	r.mu.Lock()
	defer r.mu.Unlock()
	objects, err := r.pulled.list()
	errs := []error{err}
	for _, object := range objects {
		found, ok := object.(*record)
		// The image of a recent record may be newer than the list.
		if !ok || present.Has(found.ImageRef) || r.recent.Has(found.ImageRef) {
			continue
		}
		errs = append(errs, r.pulled.remove(found.ImageRef))
	}
	r.count()
	return errors.Join(errs...)
}
