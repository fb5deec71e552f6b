package command

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/debugbundle"
)

// machineFiles say what the node runs on.
var machineFiles = []string{
	"/etc/os-release", "/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/swaps",
	"/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/self/mountinfo", "/proc/self/cgroup",
}

func machineSources() []debugbundle.Source {
	var sources []debugbundle.Source
	for _, path := range machineFiles {
		sources = append(sources, debugbundle.Source{
			Name: "machine/" + strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-"),
			Collect: func(context.Context) ([]byte, error) {
				f, err := os.Open(path)
				if err != nil {
					return nil, err
				}
				defer f.Close()
				return readLimited(f)
			},
		})
	}
	return sources
}

// configSources are the configurations as the services read them, with the secrets masked.
func configSources(cfg *service.Config) []debugbundle.Source {
	var sources []debugbundle.Source
	for _, r := range role.All() {
		path := filepath.Join(cfg.RuntimeDir, "config", string(r)+".yaml")
		if _, err := os.Stat(path); err != nil {
			continue
		}
		sources = append(sources, debugbundle.Source{
			Name: "config/" + string(r) + ".yaml",
			Collect: func(context.Context) ([]byte, error) {
				k, err := kubeletconfig.ReadResolved(path)
				if err != nil {
					return nil, err
				}
				return yaml.Marshal(k.Masked())
			},
		})
	}
	return sources
}

// processSources are the log, metrics and goroutines of each process.
func processSources(ctx context.Context, cfg *service.Config) []debugbundle.Source {
	var sources []debugbundle.Source
	for _, r := range role.All() {
		replicas, _ := service.Replicas(cfg.MetricsSocket(r)) // of too many, the first ones serve
		for _, replica := range replicas {
			name, socket := service.ProcessName(r, replica), service.ReplicaSocket(cfg.MetricsSocket(r), replica)
			sources = append(sources,
				debugbundle.Source{Name: "metrics/" + name + ".txt", Collect: askHTTP(socket, "/metrics")},
				debugbundle.Source{
					Name: "goroutines/" + name + ".txt", Collect: askHTTP(socket, "/debug/pprof/goroutine?debug=1"),
				})
		}
	}
	status, err := askStatus(ctx, cfg)
	if err != nil {
		return sources // status.json is missing, and says why
	}
	for _, p := range status.Processes {
		if p.State == "external" {
			continue // its log is elsewhere
		}
		if p.State == stateOnDemand {
			continue // it has none yet
		}
		sources = append(sources, debugbundle.Source{
			Name: "logs/" + p.Service + ".log",
			Collect: func(ctx context.Context) ([]byte, error) {
				var b bytes.Buffer
				request := &supervisorv1.ReadLogsRequest{Process: p.Service, Tail: -1}
				_, err := readLogs(ctx, &newer{to: &b}, cfg.Socket(role.Up), request)
				return b.Bytes(), err
			},
		})
	}
	return sources
}

// askHTTP returns a question to the socket of a process.
func askHTTP(socket, path string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		transport := &http.Transport{
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, // a service may have been taken over
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://service"+path, nil)
		if err != nil {
			return nil, err
		}
		answer, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s of %s answers %s", path, socket, answer.Status)
		}
		return readLimited(answer.Body)
	}
}

// owner is the owner of a file.
func owner(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return -1, -1
}
