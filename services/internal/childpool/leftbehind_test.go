package childpool

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestLeftBehind(t *testing.T) {
	proc := t.TempDir()
	for name, content := range map[string]string{
		"self/cgroup": "0::/agent\n",
		"10/stat":     "10 (microlet-mounte) Z 1 10", "10/cgroup": "0::/agent\n",
		"11/stat": "11 (microlet-mounte) D 1 10", "11/cgroup": "0::/agent\n",
		"12/stat": "12 (microlet-mounte) S 1 10", "12/cgroup": "0::/agent\n", // works
		"13/stat": "13 (microlet-mounte) Z 1 10", "13/cgroup": "0::/kubepods/pod\n", // a container's
		"14/stat": "14 (cat) D 1 10", "14/cgroup": "0::/agent\n",
		"16/stat": fmt.Sprintf("16 (microlet-mounte) D %d 10", os.Getpid()), "16/cgroup": "0::/agent\n", // this one's
		"15/stat": "15 (microlet-mounte) Z 1 10", // has ended meanwhile
	} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := leftBehind(proc, "microlet-mounte"); got != 2 {
		t.Errorf("%d are left behind, want 2", got)
	}
}
