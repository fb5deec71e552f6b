package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// Containerd is what containerd's files depend on.
type Containerd struct {
	Dir           string // where the files go
	Into          string // the root of the node's files as the caller has it; "": they are the caller's own
	Root          string // containerd's persistent data
	State         string // its state: bundles, network namespaces; on tmpfs
	Socket        string // the CRI socket
	ShimSocket    string // the folder of the shims' sockets, at most 42 bytes
	RuncRoot      string // runc's state
	Runc          string // the executable
	PluginDir     string // CNI plugins
	Reservations  string // the folder in which pods' addresses are reserved
	Pause         string // the sandbox image
	Registry      string // host:port of the registry that mirrors all others
	Bridge        string // the bridge, and the CNI network's name
	PodCIDR       netip.Prefix
	Gateway       netip.Addr
	SystemdCgroup bool // runc has systemd make the cgroups
	// RestrictOOM keeps containerd from asking for an OOM score below its own,
	// which fails without CAP_SYS_RESOURCE.
	RestrictOOM bool
	// SyncImages has an image on the disk before the runtime says that it is there. Without it, a power cut soon after a
	// pull leaves an image with empty files, which is not pulled again.
	SyncImages bool
	// Traces lets containerd send traces, where its environment says.
	Traces bool
}

// Paths of the files that Write makes.
func (c Containerd) ConfigFile() string { return filepath.Join(c.Dir, "config.toml") }
func (c Containerd) netDir() string     { return filepath.Join(c.Dir, "net.d") }
func (c Containerd) certsDir() string   { return filepath.Join(c.Dir, "certs.d") }

// The NRI and CDI plugins listen and look at fixed places of the machine.
var containerdTemplate = template.Must(template.New("containerd").Funcs(template.FuncMap{"q": quote}).Parse(`version = 3
root = {{q .Root}}
state = {{q .State}}
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs"{{if not .Traces}}, "io.containerd.tracing.processor.v1.otlp"{{end}}]

[grpc]
address = {{q .Socket}}

[ttrpc]
address = {{q .TTRPC}}

[plugins."io.containerd.internal.v1.opt"]
path = {{q .Opt}}

[plugins."io.containerd.shim.v1.manager"]
socket_dir = {{q .ShimSocket}}

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
{{- if .SyncImages}}
image_pull_with_sync_fs = true
use_local_image_pull = true # the other way to pull does not know of the sync
{{- end}}

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {{q .Pause}}

[plugins."io.containerd.cri.v1.images".registry]
config_path = {{q .Certs}}

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = {{.RestrictOOM}}
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
cdi_spec_dirs = []

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{{q .PluginDir}}]
conf_dir = {{q .Net}}
use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {{q .Runc}}
Root = {{q .RuncRoot}}
SystemdCgroup = {{.SystemdCgroup}}

# The name that upstream's RuntimeClass specs expect of a node that is set up for them.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler.options]
BinaryName = {{q .Runc}}
Root = {{q .RuncRoot}}
SystemdCgroup = {{.SystemdCgroup}}

[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
stream_server_port = "0"
`))

// quote writes a TOML basic string. Paths of the rig hold no control
// characters, for which TOML and JSON differ.
func quote(s string) (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// Write writes containerd's configuration, its CNI network and the mirror.
func (c Containerd) Write() error {
	const longest = 42 // what containerd accepts: 107 less a slash and a SHA-256
	if len(c.ShimSocket) > longest {
		return fmt.Errorf("write containerd's configuration: shim socket folder %q has %d bytes, at most %d are possible: "+
			"choose a shorter instance name", c.ShimSocket, len(c.ShimSocket), longest)
	}
	var buf bytes.Buffer
	err := containerdTemplate.Execute(&buf, struct {
		Containerd
		TTRPC, Opt, Certs, Net string
	}{c, c.Socket + ".ttrpc", filepath.Join(c.Dir, "opt"), c.certsDir(), c.netDir()})
	if err != nil {
		return fmt.Errorf("write containerd's configuration: %w", err)
	}
	conflist, err := c.network()
	if err != nil {
		return err
	}
	for path, text := range map[string][]byte{
		c.ConfigFile(): buf.Bytes(),
		filepath.Join(c.netDir(), "10-rig.conflist"):          conflist,
		filepath.Join(c.certsDir(), "_default", "hosts.toml"): []byte(c.mirror()),
	} {
		if err := write(filepath.Join(c.Into, path), text); err != nil {
			return err
		}
	}
	return nil
}

// mirror answers for every registry: what the rig's own does not have does
// not exist, on every machine and at once.
func (c Containerd) mirror() string {
	url := "http://" + c.Registry
	return fmt.Sprintf("server = %q\n\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", url, url)
}

// network is the CNI network: the rig has made the bridge and the rules for
// masquerading already, once for all pods.
func (c Containerd) network() ([]byte, error) {
	type object = map[string]any
	text, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       c.Bridge,
		"plugins": []any{
			object{
				"type": "bridge", "bridge": c.Bridge, "isGateway": true, "ipMasq": false, "hairpinMode": true,
				"ipam": object{
					"type":    "host-local",
					"dataDir": c.Reservations,
					"ranges":  []any{[]any{object{"subnet": c.PodCIDR.String(), "gateway": c.Gateway.String()}}},
					"routes":  []any{object{"dst": "0.0.0.0/0"}},
				},
			},
			object{"type": "portmap", "capabilities": object{"portMappings": true}, "backend": "iptables"},
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write CNI network: %w", err)
	}
	return append(text, '\n'), nil
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// ResolvConf writes the resolv.conf that pods with the default DNS policy
// inherit: the machine's, or an empty one where it has none.
func ResolvConf(path string) error {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil || strings.TrimSpace(string(text)) == "" {
		text = []byte("# this machine has no /etc/resolv.conf\n")
	}
	return write(path, text)
}
