package local

import (
	"bytes"
	"io"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
)

// TestServices are some of microlet's, each with its command, and none that has credentials of the API.
func TestServices(t *testing.T) {
	found := 0
	for _, s := range catalog.Services() {
		if !Has(s.Role) {
			continue
		}
		found++
		cmd, _, err := Command([]string{string(s.Role)}).Find([]string{string(s.Role)})
		if err != nil || cmd.Name() != string(s.Role) || cmd.Flags().Lookup("runtime-dir") == nil {
			t.Errorf("%s: %v, %v", s.Role, cmd, err)
		}
		if id, err := role.Get(s.Role); err != nil || id.APICredentials {
			t.Errorf("%s has credentials of the API: %+v, %v", s.Role, id, err)
		}
	}
	if found != len(services()) {
		t.Errorf("%d of %d services are microlet's", found, len(services()))
	}
	if n := len(Command([]string{"evictor", "--help"}).Commands()); n != 1 {
		t.Errorf("the command line of one service has %d", n)
	}
}

// TestVersion is what Check asks for.
func TestVersion(t *testing.T) {
	var out bytes.Buffer
	cmd := Command([]string{"--version"})
	cmd.SetArgs([]string{"--version"})
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil || out.String() != "microlet-local version "+telemetry.Version+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestAnUnknownService is an error that names it.
func TestAnUnknownService(t *testing.T) {
	cmd := Command([]string{"nonsense"})
	cmd.SetArgs([]string{"nonsense"})
	cmd.SetOut(io.Discard)
	if err := cmd.Execute(); err == nil || err.Error() != `"nonsense" is no service: see microlet-local --help` {
		t.Errorf("%v", err)
	}
}
