package rootdir

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"
)

func TestFoldersOfPlugins(t *testing.T) {
	for name, c := range map[string]struct {
		enabled bool
		err     error
		want    map[string]string
		warns   int
	}{
		"without SELinux": {},
		"with SELinux": {enabled: true, want: map[string]string{
			"/root/plugins":          "system_u:object_r:container_file_t:s0",
			"/root/plugins_registry": "system_u:object_r:container_file_t:s0",
		}},
		"where labels cannot be set": {enabled: true, err: errors.New("not supported"), warns: 2},
	} {
		t.Run(name, func(t *testing.T) {
			labels, text := map[string]string{}, &bytes.Buffer{}
			Dir("/root").labelPlugins(selinuxHost{
				enabled: func() bool { return c.enabled },
				setLabel: func(path, label string) error {
					if c.err == nil {
						labels[path] = label
					}
					return c.err
				},
			}, slog.New(slog.NewTextHandler(text, nil)))
			if !maps.Equal(labels, c.want) || strings.Count(text.String(), "not supported") != c.warns {
				t.Errorf("labels %v, log %s", labels, text)
			}
		})
	}
}

// What is labeled must be there.
func TestFoldersOfPluginsAreMade(t *testing.T) {
	root := Dir(t.TempDir())
	if err := root.makeFolders(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range root.plugins() {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || info.Mode().Perm() != 0o750 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
}
