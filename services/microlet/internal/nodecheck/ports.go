package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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
		case errors.Is(err, syscall.EADDRINUSE):
			h.inUse(r, address, p.setting, p.number)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			r.failed("port", fmt.Sprintf("%s (%s): this machine has no such address", address, p.setting),
				"correct the address in the configuration")
		default:
			r.failed("port", fmt.Sprintf("%s (%s) cannot be opened: %v", address, p.setting, errors.Unwrap(err)),
				"change "+p.setting)
		}
	}
}

// inUse says whose a port is that cannot be opened.
func (h Host) inUse(r *report, address, setting string, port int32) {
	inodes, nodeAPI := h.listeners(port)
	pid := h.holder(inodes)
	switch {
	case nodeAPI, slices.Contains(h.Own, pid), h.Running && pid == 0:
		r.ok("port", "%s (%s) is in use, by the running agent", address, setting)
	case h.Like != nil && pid == h.Like.PID:
		r.ok("port", "%s (%s) is in use by the kubelet, pid %d, which ends before microlet starts", address, setting, pid)
	case pid != 0:
		name := firstLine(h.path(fmt.Sprintf("proc/%d/comm", pid)))
		r.failed("port", fmt.Sprintf("%s (%s) is in use by %q, pid %d", address, setting, name, pid),
			"end that, or change "+setting)
	default:
		r.failed("port", fmt.Sprintf("%s (%s) is in use", address, setting),
			fmt.Sprintf("find out who has it with \"ss -ltnp sport = :%d\", or change %s", port, setting))
	}
}

// listening is the state of a socket that listens, as proc_net_tcp(5) writes it.
const listening = "0A"

// listeners are the inodes of the sockets that listen on a port, and whether a user of the node agent has one of them:
// nodeapi's, or that of another service which shares its process. The agent may use another folder than the check, or
// not answer.
func (h Host) listeners(port int32) (inodes []string, nodeAPI bool) {
	for _, name := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		for _, line := range h.lines(name) {
			fields := strings.Fields(line)
			if len(fields) < 10 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) || fields[3] != listening {
				continue
			}
			uid, err := strconv.ParseInt(fields[7], 10, 64)
			nodeAPI = nodeAPI || err == nil && role.Reserved(uid)
			inodes = append(inodes, fields[9])
		}
	}
	return inodes, nodeAPI
}

// holder is a process that has one of the sockets open; 0 if none is found, as where this user may not look.
func (h Host) holder(inodes []string) int {
	if len(inodes) == 0 {
		return 0
	}
	files, err := filepath.Glob(h.path("proc/[0-9]*/fd/*"))
	if err != nil {
		return 0
	}
	for _, file := range files {
		target, err := os.Readlink(file)
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket || !slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(file)))); err == nil {
			return pid
		}
	}
	return 0
}
