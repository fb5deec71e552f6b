// Package formername lets a client of podsync and a podsync of the previous version work with each other.
//
// The methods of LocalPodService, EvictionService and VolumeStatsService were methods of PodsyncService. podsync also
// serves them by these former names, and its clients use them when podsync has only these. The package goes with the
// next release.
package formername

import (
	"context"
	"path"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// Of returns the former full name of a method of one of these services.
func Of(fullMethod string) string {
	return "/" + podsyncv1.PodsyncService_ServiceDesc.ServiceName + "/" + path.Base(fullMethod)
}

// Conn returns a connection to podsync for the clients of these services.
func Conn(podsync grpc.ClientConnInterface) grpc.ClientConnInterface {
	return conn{podsync, grpc_health_v1.NewHealthClient(podsync)}
}

type conn struct {
	grpc.ClientConnInterface
	health grpc_health_v1.HealthClient
}

// Invoke asks podsync for its service before each call. An older podsync would report a call of an unknown method as
// one that its caller may not make. What podsync answered before does not count, because another build may have taken
// its place since.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	service := strings.TrimPrefix(path.Dir(method), "/")
	_, err := c.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, o...)
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		method = Of(method)
	default:
		return err
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, o...)
}
