package collector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/internal/logkey"
)

// removeOld removes the images that were unused for the maximum age, and returns the others.
func (c *Collector) removeOld(ctx context.Context, candidates []candidate) (others []candidate, err error) {
	settling := time.Since(c.started) < min(c.o.Settling, c.o.MaximumAge)
	if settling || !slices.ContainsFunc(candidates, c.isOlder) {
		return candidates, nil
	}
	if candidates, err = c.withoutKept(ctx, candidates); err != nil {
		return nil, err
	}
	var errs []error
	for _, one := range candidates {
		if !c.isOlder(one) || c.isNew(one) {
			others = append(others, one)
			continue
		}
		removed, err := c.remove(ctx, one, becauseOfAge)
		if err != nil {
			errs = append(errs, err)
		}
		if !removed {
			others = append(others, one)
		}
	}
	if len(errs) > 0 {
		return others, fmt.Errorf("wanted to free images older than %v, encountered errors in image deletion: %w",
			c.o.MaximumAge, errors.Join(errs...))
	}
	return others, nil
}

// free removes images until so many bytes are freed. An image that cannot be removed keeps no other.
func (c *Collector) free(ctx context.Context, candidates []candidate, wanted int64) (Removed, error) {
	var all Removed
	candidates, err := c.withoutKept(ctx, candidates)
	if err != nil {
		return all, err
	}
	var errs []error
	for _, one := range candidates {
		if all.Bytes >= wanted {
			break
		}
		if c.isNew(one) {
			continue
		}
		removed, err := c.remove(ctx, one, becauseOfSpace)
		if err != nil {
			errs = append(errs, err)
		}
		if removed {
			all.Images++
			all.Bytes += sizeOf(one.image)
		}
	}
	if len(errs) > 0 {
		return all, fmt.Errorf("wanted to free %d bytes, but freed %d bytes space with errors in image deletion: %w",
			wanted, all.Bytes, errors.Join(errs...))
	}
	return all, nil
}

// withoutKept returns the images that the owner of the node does not want to keep.
func (c *Collector) withoutKept(ctx context.Context, candidates []candidate) ([]candidate, error) {
	images := make([]*retentionv1.KeepRequest_Image, len(candidates))
	for i, one := range candidates {
		images[i] = &retentionv1.KeepRequest_Image{
			Id: one.image.GetId(), Names: slices.Concat(one.image.GetRepoTags(), one.image.GetRepoDigests()),
			SizeBytes: sizeOf(one.image), Unused: durationpb.New(one.age.Unused),
		}
	}
	kept, err := c.o.Retention.Keep(ctx, images)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(candidates), func(one candidate) bool { return kept[one.image.GetId()] }), nil
}

// remove removes an image unless a pod names it. The pods are read again for each: one may have been admitted since the
// collection began.
func (c *Collector) remove(ctx context.Context, one candidate, reason string) (removed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	named, err := c.o.Pods.Named()
	if err != nil {
		return false, err
	}
	if isNamed(one.image, named) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	id := one.image.GetId()
	if err := c.o.Runtime.Remove(ctx, id); err != nil {
		c.metrics.failed.Inc()
		return false, fmt.Errorf("remove image %s: %w", id, err)
	}
	c.o.Ages.Forget(id) // if it is pulled again, it is a new one
	c.metrics.collected.WithLabelValues(reason).Inc()
	c.o.Log.Info("image removed", "image", id, "names", one.image.GetRepoTags(), "bytes", one.image.GetSize(),
		logkey.Reason, reason, "unused", one.age.Unused)
	return true, nil
}
