package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// ports checks that the agent can open its ports.
func (h Host) ports(ctx context.Context, r *report, k *kubeletconfig.Config) {
	c := &k.Kubelet
	type port struct {
		setting, address string
		number           int32
	}
	var all []port
	if *c.EnableServer {
		all = append(all, port{"port", c.Address, c.Port}, port{"readOnlyPort", c.Address, c.ReadOnlyPort})
	}
	all = append(all, port{"healthzPort", c.HealthzBindAddress, *c.HealthzPort})
	for _, p := range all {
		if p.number <= 0 {
			continue
		}
		address := net.JoinHostPort(p.address, strconv.Itoa(int(p.number)))
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			r.ok("port", "%s (%s) is free", address, p.setting)
			_ = l.Close() // it was opened to see that it can be
		case errors.Is(err, syscall.EADDRINUSE) && (h.Running || h.hasNodeAPI(p.number)):
			r.ok("port", "%s (%s) is in use, by the running agent", address, p.setting)
		case errors.Is(err, syscall.EADDRINUSE):
			r.failed("port", fmt.Sprintf("%s (%s) is in use", address, p.setting),
				fmt.Sprintf("find out who has it with \"ss -ltnp sport = :%d\", or change %s", p.number, p.setting))
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			r.failed("port", fmt.Sprintf("%s (%s): this machine has no such address", address, p.setting),
				"correct the address in the configuration")
		default:
			r.failed("port", fmt.Sprintf("%s (%s) cannot be opened: %v", address, p.setting, errors.Unwrap(err)),
				"change "+p.setting)
		}
	}
}

// listening is the state of a socket that listens, as proc_net_tcp(5) writes it.
const listening = "0A"

// hasNodeAPI reports whether a process of nodeapi's user listens on the port: the agent may use another folder than the
// check, or not answer.
func (h Host) hasNodeAPI(port int32) bool {
	id, err := role.Get(role.NodeAPI)
	if err != nil {
		return false
	}
	for _, name := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		text, err := os.ReadFile(h.path(name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > 7 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) && fields[3] == listening &&
				fields[7] == strconv.Itoa(id.UID) {
				return true
			}
		}
	}
	return false
}
