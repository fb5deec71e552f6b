package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// healthTimeout bounds the question to one replica.
const healthTimeout = 3 * time.Second

func newHealth() *cobra.Command {
	cfg := service.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "health SERVICE",
		Short: "Ask a service whether it does its work; exit code 1 if it does not",
		Long: "Ask a service whether it does its work, and end with 1 if it does not. It needs no\n" +
			"\"microlet up\", so that it serves as the health check of a container. It asks the replicas that\n" +
			"run in its own cgroups or those of --peer-cgroups; one that serves must be among them, and none\n" +
			"that does not.",
		Args: service.OneArgument("a service"),
	}
	cmd.Flags().StringVar(&cfg.RuntimeDir, "runtime-dir", cfg.RuntimeDir, "runtime folder of the node agent that is asked")
	cmd.Flags().StringSliceVar(&cfg.PeerCgroups, "peer-cgroups", nil,
		"further cgroups with processes of the node agent, such as /system.slice/microlet.service")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := findRole(args[0])
		if err != nil {
			return err
		}
		return askHealth(cmd.Context(), &cfg, r)
	}
	return cmd
}

// askHealth asks all replicas that it may: at least one serves, and each that answers does.
func askHealth(ctx context.Context, cfg *service.Config, r role.Role) error {
	replicas, err := service.Replicas(cfg.Socket(r))
	if err != nil {
		return err
	}
	if len(replicas) == 0 {
		return fmt.Errorf("%s is not running: nothing serves %s; start it, or name its --runtime-dir", r,
			cfg.Socket(r))
	}
	serving := 0
	var silent, sick []error
	for _, replica := range replicas {
		status, err := askReplica(ctx, cfg, r, replica)
		switch {
		case err != nil:
			silent = append(silent, fmt.Errorf("%s does not answer: %w", service.ProcessName(r, replica), err))
		case status == grpc_health_v1.HealthCheckResponse_SERVING:
			serving++
		default:
			sick = append(sick, fmt.Errorf("%s is %s", service.ProcessName(r, replica),
				strings.ToLower(strings.ReplaceAll(status.String(), "_", " "))))
		}
	}
	if serving > 0 || len(sick) > 0 {
		silent = nil // replicas that are others', or that were killed and left their sockets
	}
	return errors.Join(slices.Concat(sick, silent)...)
}

// askReplica asks one replica for the health of the whole process.
func askReplica(ctx context.Context, cfg *service.Config, r role.Role,
	replica string) (grpc_health_v1.HealthCheckResponse_ServingStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	conn, err := unixgrpc.Dial(service.ReplicaSocket(cfg.Socket(r), replica),
		unixgrpc.DialOptions{Server: r, Peers: cfg.Peers()})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return answer.GetStatus(), err
}
