package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/microlet/internal/catalog"
)

func argumentsConfig(t *testing.T) *Config {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Services = catalog.Services()
	cfg.AddFlags(pflag.NewFlagSet("up", pflag.ContinueOnError))
	cfg.Service.RuntimeDir, cfg.Service.NodeName = t.TempDir(), "node-1"
	if err := os.Mkdir(filepath.Join(cfg.Service.RuntimeDir, "config"), 0o750); err != nil {
		t.Fatal(err)
	}
	return &cfg
}

// TestWriteArguments: each service's unit finds a file with the arguments that "microlet up" would give, and no name of
// a service among them.
func TestWriteArguments(t *testing.T) {
	cfg := argumentsConfig(t)
	cfg.Service.PeerCgroups = []string{"/system.slice/system-microlet.slice/*"}
	for range 2 { // the second time they are there
		if err := cfg.writeArguments(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range cfg.Services {
		text, err := os.ReadFile(cfg.argumentsPath(string(s.Role)))
		if err != nil {
			t.Fatal(err)
		}
		want := `MICROLET_ARGS="` + strings.Join(cfg.arguments(s, 0)[1:], " ") + "\"\n"
		if !strings.HasSuffix(string(text), want) || !strings.Contains(want, "--peer-cgroups=/system.slice/") {
			t.Errorf("the file of %s is %q, want %q at its end", s.Role, text, want)
		}
	}
}

// TestWriteArgumentsRefuses: what systemd would read as something else is refused.
func TestWriteArgumentsRefuses(t *testing.T) {
	for _, name := range []string{`a b`, `a"b`, `$HOME`, `a\b`, "a\nUSER=root", "a'b"} {
		cfg := argumentsConfig(t)
		cfg.Service.NodeName = name
		if err := cfg.writeArguments(); err == nil || !strings.Contains(err.Error(), "--node-name=") {
			t.Errorf("the error of the name %q is %v", name, err)
		}
	}
}
