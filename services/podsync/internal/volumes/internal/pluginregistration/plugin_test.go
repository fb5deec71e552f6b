package pluginregistration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	root   = "/var/lib/kubelet"
	socket = root + "/plugins_registry/a.sock"
)

func TestWhatAPluginSaysIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*registerapi.PluginInfo)
		want   string // in the error; empty: none
	}{
		"a driver":                {func(*registerapi.PluginInfo) {}, ""},
		"a resource":              {func(i *registerapi.PluginInfo) { i.Name = "vendor.example/gpu" }, ""},
		"no endpoint":             {func(i *registerapi.PluginInfo) { i.Endpoint = "" }, ""},
		"no versions":             {func(i *registerapi.PluginInfo) { i.SupportedVersions = nil }, ""},
		"no type":                 {func(i *registerapi.PluginInfo) { i.Type = "" }, "type is empty"},
		"a type with a line":      {func(i *registerapi.PluginInfo) { i.Type = "CSI\nPlugin" }, `type is "CSI\nPlugin"`},
		"no name":                 {func(i *registerapi.PluginInfo) { i.Name = "" }, "name is empty"},
		"a name that climbs":      {func(i *registerapi.PluginInfo) { i.Name = "../../etc" }, `name is "../../etc"`},
		"a name that climbs late": {func(i *registerapi.PluginInfo) { i.Name = "a/../../b" }, `name is "a/../../b"`},
		"a name of this folder":   {func(i *registerapi.PluginInfo) { i.Name = "." }, `name is "."`},
		"an absolute name":        {func(i *registerapi.PluginInfo) { i.Name = "/a" }, `name is "/a"`},
		"a name with a NUL":       {func(i *registerapi.PluginInfo) { i.Name = "a\x00b" }, `name is "a\x00b"`},
		"a name with a space":     {func(i *registerapi.PluginInfo) { i.Name = "a b" }, `name is "a b"`},
		"a long name": {
			func(i *registerapi.PluginInfo) { i.Name = strings.Repeat("a", 318) }, "name has 318 bytes: at most 317",
		},
		"an endpoint outside": {
			func(i *registerapi.PluginInfo) { i.Endpoint = "/run/containerd/containerd.sock" },
			`endpoint is "/run/containerd/containerd.sock": it must be the clean path of a socket below ` + root,
		},
		"an endpoint that climbs":   {func(i *registerapi.PluginInfo) { i.Endpoint = root + "/../x" }, "endpoint is"},
		"a relative endpoint":       {func(i *registerapi.PluginInfo) { i.Endpoint = "plugins/x" }, "endpoint is"},
		"an endpoint with a scheme": {func(i *registerapi.PluginInfo) { i.Endpoint = "unix://" + root }, "endpoint is"},
		"the root as an endpoint":   {func(i *registerapi.PluginInfo) { i.Endpoint = root }, "endpoint is"},
		"a neighbour of the root":   {func(i *registerapi.PluginInfo) { i.Endpoint = root + "-x/s" }, "endpoint is"},
		"a long endpoint": {
			func(i *registerapi.PluginInfo) { i.Endpoint = root + "/" + strings.Repeat("a", 4096) }, "at most 4095",
		},
		"an empty version": {
			func(i *registerapi.PluginInfo) { i.SupportedVersions = []string{""} }, "supported_versions is empty",
		},
		"many versions": {
			func(i *registerapi.PluginInfo) { i.SupportedVersions = slices.Repeat([]string{"1.0.0"}, 33) },
			"supported_versions has 33 entries: at most 32",
		},
	} {
		t.Run(name, func(t *testing.T) {
			info := &registerapi.PluginInfo{
				Type: registerapi.CSIPlugin, Name: "driver.example", Endpoint: root + "/plugins/driver.example/csi.sock",
				SupportedVersions: []string{"1.0.0"},
			}
			c.change(info)
			p, err := pluginOf(info, root, socket)
			if c.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				if info.GetEndpoint() == "" && p.Endpoint != socket {
					t.Errorf("the endpoint is %q, not the socket", p.Endpoint)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, without %q", err, c.want)
			}
		})
	}
}

// FuzzWhatAPluginSays: what passes can be joined to a folder and stays in it, and the endpoint is below the root.
func FuzzWhatAPluginSays(f *testing.F) {
	f.Add("CSIPlugin", "driver.example", root+"/plugins/x/csi.sock", "1.0.0")
	f.Add("DevicePlugin", "vendor.example/gpu", "", "v1beta1")
	f.Add("CSIPlugin", "a/../../b", root+"/../../etc", "")
	f.Fuzz(func(t *testing.T, kind, name, endpoint, version string) {
		p, err := pluginOf(&registerapi.PluginInfo{
			Type: kind, Name: name, Endpoint: endpoint, SupportedVersions: []string{version},
		}, root, socket)
		if err != nil {
			return
		}
		for _, path := range []string{p.Endpoint, filepath.Join(root, p.Name)} {
			if !strings.HasPrefix(path, root+"/") || filepath.Clean(path) != path {
				t.Errorf("%q is not below %s", path, root)
			}
		}
		if strings.ContainsAny(p.Name+p.Endpoint+version+kind, "\x00\n\r") || len(p.Endpoint) > maxEndpoint {
			t.Errorf("%+v has what no name has", p)
		}
	})
}
