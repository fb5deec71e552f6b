package up

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/microlet/microlet/proto/role"
)

// argumentsVariable is in the file of each service what its unit gives to "microlet <service>".
const argumentsVariable = "MICROLET_ARGS"

// plain is an argument that means the same to systemd, which takes quotes, backslashes and variables out of a file
// and splits the rest at spaces, and to the service.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:,=@%+*\[\]~-]+$`)

// argumentsPath is the file of a service's arguments.
func (c *Config) argumentsPath(service string) string {
	return filepath.Join(c.Service.RuntimeDir, "config", service+".env")
}

// writeArguments writes the command line of each service for its unit, as systemd.exec(5) reads an EnvironmentFile=.
// The files are root's.
func (c *Config) writeArguments() error {
	for _, s := range c.Services {
		args := c.arguments(s, 0)[1:]
		for _, a := range args {
			if !plain.MatchString(a) {
				return fmt.Errorf("argument %q of %s cannot be written for a unit: use letters, digits and _./:,=@%%+*[]~-",
					a, s.Role)
			}
		}
		text := fmt.Sprintf("# Written by microlet prepare.\n%s=\"%s\"\n", argumentsVariable, strings.Join(args, " "))
		path := c.argumentsPath(string(s.Role))
		if same, err := holds(path, []byte(text)); err != nil {
			return err
		} else if same {
			continue
		}
		if err := writeFile(path, []byte(text), 0o600, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// PreparedPeers returns the --peer-cgroups that "microlet prepare" has written for units below a runtime folder, and
// an error that is fs.ErrNotExist if it has not run there.
func PreparedPeers(runtimeDir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(runtimeDir, "config", string(role.Bus)+".env"))
	if err != nil {
		return nil, err
	}
	for _, arg := range strings.FieldsFunc(string(text), func(r rune) bool { return r == ' ' || r == '"' || r == '\n' }) {
		if list, ok := strings.CutPrefix(arg, "--peer-cgroups="); ok {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
