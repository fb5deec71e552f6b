package up

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/recentlog"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// keepLog keeps the newest lines of the node's log while the service runs.
func keepLog(s *service.Service) *recentlog.Log {
	log := recentlog.New()
	telemetry.ProcessWriter().Tee(log)
	s.Go("log readers", func(ctx context.Context) error {
		<-ctx.Done()
		log.Close() // who follows the log would keep the API from ending
		return nil
	})
	return log
}

// ReadLogs sends the newest lines of the log.
func (s *server) ReadLogs(r *supervisorv1.ReadLogsRequest,
	to grpc.ServerStreamingServer[supervisorv1.ReadLogsResponse]) error {
	if err := s.knowsLogOf(r.GetProcess()); err != nil {
		return err
	}
	query := recentlog.Query{Process: r.GetProcess(), Words: s.names(r.GetWord())}
	page := s.log.Read(query)
	if tail := int(r.GetTail()); tail >= 0 && tail < len(page.Lines) {
		page.Lines = page.Lines[len(page.Lines)-tail:]
	}
	for {
		if len(page.Lines) > 0 || page.Missed {
			if err := to.Send(&supervisorv1.ReadLogsResponse{Lines: page.Lines, Missed: page.Missed}); err != nil {
				return err
			}
		}
		if !r.GetFollow() || page.Changed == nil {
			return nil
		}
		select {
		case <-page.Changed:
		case <-to.Context().Done():
			return nil
		}
		query.After = page.Last
		page = s.log.Read(query)
	}
}

// names are what a pod that an operator named may be called: the name of a static pod ends with the node's.
func (s *server) names(pod string) []string {
	if pod == "" {
		return nil
	}
	return []string{pod, pod + "-" + strings.ToLower(s.nodeName)}
}

// knowsLogOf refuses the name of a process that does not write to this log.
func (s *server) knowsLogOf(name string) error {
	if name == "" || name == string(role.Up) {
		return nil
	}
	service, _, _ := strings.Cut(name, ".")
	if slices.Contains(s.externals, role.Role(service)) {
		return status.Errorf(codes.FailedPrecondition,
			"%s is external: its log is where what starts it puts it, such as journalctl -u of its unit", service)
	}
	if !slices.ContainsFunc(s.agents.Processes(), func(p supervisor.Process) bool {
		of, _, _ := strings.Cut(p.Name, ".")
		return p.Name == name || of == name ||
			slices.ContainsFunc(p.Services, func(s supervisor.Service) bool { return s.Name == name })
	}) {
		return status.Errorf(codes.NotFound, "%q does not run on this node: see microlet status", name)
	}
	return nil
}
