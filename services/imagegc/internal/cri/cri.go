// Package cri asks the runtime for its images and containers, through podsync's gateway.
package cri

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilist"
)

// callTimeout bounds a call that lists, as runtimeRequestTimeout does by default in the kubelet.
const callTimeout = 2 * time.Minute

// Client asks. It is safe for concurrent use.
type Client struct {
	image runtimeapi.ImageServiceClient
	lists *crilist.Lister
}

// New returns a client of this connection.
func New(conn grpc.ClientConnInterface, o crilist.Options) *Client {
	return &Client{image: runtimeapi.NewImageServiceClient(conn), lists: crilist.New(conn, conn, o)}
}

// Images returns all images.
func (c *Client) Images(ctx context.Context) ([]*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return crilist.Collect(c.lists.Images(ctx))
}

// Containers returns all containers, those that have ended too.
func (c *Client) Containers(ctx context.Context) ([]*runtimeapi.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return crilist.Collect(c.lists.Containers(ctx, nil))
}

// Remove removes an image with all its names. One that is not there is no error.
func (c *Client) Remove(ctx context.Context, id string) error {
	_, err := c.image.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return err
}

// ImageRoot returns the folder in which the runtime keeps its images: the first image file system, as in the kubelet.
func (c *Client) ImageRoot(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.image.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "", err
	}
	if len(resp.GetImageFilesystems()) == 0 {
		return "", errors.New("the runtime has no image file system")
	}
	return resp.GetImageFilesystems()[0].GetFsId().GetMountpoint(), nil
}
