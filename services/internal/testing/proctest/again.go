package proctest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// againEnv says to a test's binary that Again has started it.
const againEnv = "MICROLET_TEST_AGAIN"

// Again runs the test that calls it once more in a process of cmd, such as one with namespaces of its own, and fails
// unless it passes there. cmd runs the test's binary, without arguments of its own.
func Again(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Args = append(cmd.Args, "-test.run=^"+t.Name()+"$", "-test.v")
	for _, a := range os.Args {
		if strings.HasPrefix(strings.TrimLeft(a, "-"), "update") { // golden's flag
			cmd.Args = append(cmd.Args, a)
		}
	}
	cmd.Env = append(os.Environ(), againEnv+"=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("once more in another process: %v", err)
	}
}

// IsAgain reports whether Again has started this process.
func IsAgain() bool { return os.Getenv(againEnv) != "" }
