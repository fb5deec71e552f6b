package evictor

import (
	"context"

	"google.golang.org/grpc"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
)

// peers are the connections to other services. None of them needs to be up.
type peers struct {
	podsync, imagegc, stats, cri *grpc.ClientConn
}

func dial(ctx context.Context, s *service.Service) (*peers, error) {
	p := &peers{}
	var err error
	if p.cri, err = s.DialCRI(); err != nil {
		return nil, err
	}
	for to, conn := range map[role.Role]**grpc.ClientConn{
		role.Podsync: &p.podsync, role.ImageGC: &p.imagegc, role.Stats: &p.stats,
	} {
		if *conn, err = s.Dial(ctx, to); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

func (p *peers) close() {
	for _, conn := range []*grpc.ClientConn{p.cri, p.podsync, p.imagegc, p.stats} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}
