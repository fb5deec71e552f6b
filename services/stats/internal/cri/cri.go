// Package cri asks the runtime, through podsync's gateway, for what it alone knows: what the writable layers of
// containers and its images take, and when it created them.
package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

// maxClockLead is how far the runtime's clock may be ahead of ours; both are the node's.
const maxClockLead = time.Minute

// Layer is what the writable layer of a container takes.
type Layer struct {
	Time time.Time
	// Mountpoint is a path on the file system that it lies on; empty if the runtime does not say.
	Mountpoint string
	// Used and Inodes are nil if the runtime does not say.
	Used, Inodes *uint64
}

// Usage is what containers and images take, as the runtime said at one time. It is shared: do not change it.
type Usage struct {
	// Layers are those of running containers, by the container's ID.
	Layers map[string]Layer
	// Images is the first image file system; nil if the runtime has none.
	Images *Layer
}

// Created is when sandboxes and containers were created, by their IDs. It is shared: do not change it.
type Created map[string]time.Time

// Client asks. It is safe for concurrent use.
type Client struct {
	runtime runtimeapi.RuntimeServiceClient
	image   runtimeapi.ImageServiceClient
	lists   *crilist.Lister
	book    *readerrors.Recorder
}

// New returns a client of this connection.
func New(conn grpc.ClientConnInterface, o crilist.Options, book *readerrors.Recorder) *Client {
	return &Client{
		runtime: runtimeapi.NewRuntimeServiceClient(conn), image: runtimeapi.NewImageServiceClient(conn),
		lists: crilist.New(conn, conn, o), book: book,
	}
}

// ReadUsage asks what containers and images take. It makes the runtime measure each container.
func (c *Client) ReadUsage(ctx context.Context) (*Usage, error) {
	u := &Usage{Layers: map[string]Layer{}}
	var wg sync.WaitGroup
	var layers, images error
	wg.Go(func() { layers = c.layers(ctx, u.Layers) })
	wg.Go(func() { u.Images, images = c.images(ctx) })
	wg.Wait()
	if err := errors.Join(layers, images); err != nil {
		return nil, err
	}
	return u, nil
}

// ReadCreated asks when sandboxes and containers were created, which costs the runtime little.
func (c *Client) ReadCreated(ctx context.Context) (Created, error) {
	created := Created{}
	if err := c.created(ctx, created); err != nil {
		return nil, err
	}
	return created, nil
}

func (c *Client) layers(ctx context.Context, to map[string]Layer) error {
	for s, err := range c.lists.ContainerStats(ctx, nil) {
		if status.Code(err) == codes.Unimplemented {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the runtime does not report what containers use: %w", err)
		}
		id := s.GetAttributes().GetId()
		if id == "" || s.GetWritableLayer() == nil {
			continue
		}
		layer, err := usage(s.GetWritableLayer())
		if err != nil {
			c.book.Add(readerrors.Runtime, "container "+id, err)
			continue
		}
		to[id] = layer
	}
	return nil
}

// usage believes a file system's figures only if they can be.
func usage(u *runtimeapi.FilesystemUsage) (Layer, error) {
	l := Layer{Mountpoint: u.GetFsId().GetMountpoint()}
	at, err := when(u.GetTimestamp())
	if err != nil {
		return l, err
	}
	l.Time = at
	if v := u.GetUsedBytes(); v != nil {
		if v.GetValue() > unbelievable {
			return l, fmt.Errorf("it uses %d bytes", v.GetValue())
		}
		used := v.GetValue()
		l.Used = &used
	}
	if v := u.GetInodesUsed(); v != nil {
		if v.GetValue() > unbelievable {
			return l, fmt.Errorf("it uses %d inodes", v.GetValue())
		}
		inodes := v.GetValue()
		l.Inodes = &inodes
	}
	return l, nil
}

// LayerOf is what the writable layer of a container takes, of figures that a Client has checked.
func LayerOf(u *runtimeapi.FilesystemUsage) Layer {
	l, err := usage(u)
	if err != nil {
		return Layer{} // a Client gives none of these
	}
	return l
}

// unbelievable is more than any file system has: a negative number became unsigned.
const unbelievable = 1 << 62

// when reads a time of the runtime's, in nanoseconds since 1970.
func when(nanoseconds int64) (time.Time, error) {
	at := time.Unix(0, nanoseconds)
	if nanoseconds <= 0 || time.Until(at) > maxClockLead {
		return time.Time{}, fmt.Errorf("its time is %d ns after 1970", nanoseconds)
	}
	return at, nil
}

func (c *Client) created(ctx context.Context, to Created) error {
	add := func(kind, id string, nanoseconds int64) {
		at, err := when(nanoseconds)
		if err != nil {
			c.book.Add(readerrors.Runtime, kind+" "+id, err)
			return
		}
		to[id] = at
	}
	for s, err := range c.lists.Sandboxes(ctx, nil) {
		if err != nil {
			return fmt.Errorf("the runtime does not list its sandboxes: %w", err)
		}
		add("sandbox", s.GetId(), s.GetCreatedAt())
	}
	for one, err := range c.lists.Containers(ctx, nil) {
		if err != nil {
			return fmt.Errorf("the runtime does not list its containers: %w", err)
		}
		add("container", one.GetId(), one.GetCreatedAt())
	}
	return nil
}

func (c *Client) images(ctx context.Context) (*Layer, error) {
	resp, err := c.image.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("the runtime does not report what images use: %w", err)
	}
	if len(resp.GetImageFilesystems()) == 0 {
		return nil, nil //nolint:nilnil // a runtime without an image file system is no error
	}
	layer, err := usage(resp.GetImageFilesystems()[0])
	if err != nil {
		c.book.Add(readerrors.Runtime, "images", err)
		return nil, nil //nolint:nilnil // as if it had reported none
	}
	return &layer, nil
}
