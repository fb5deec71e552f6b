package command

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// repository is the repository's root.
const repository = "../../../../"

func repositoryFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// commandLines are the command lines of microlet in a text, from its name to the end of the command.
var commandLines = regexp.MustCompile(`(?m)(?:^|[\s"(|\x60])microlet ((?:status|check|explain|pods|logs|restart|version|debug|health)\b[^\n\x60|&;)"#]*)`)

// Each command of microlet that the roll-out's page and files call is there, with its flags.
func TestRolloutCommands(t *testing.T) {
	for path, least := range map[string]int{
		"docs/rollout.md": 8,
		"deploy/system-upgrade-controller/plan.yaml":       3,
		"deploy/ansible/roles/microlet/tasks/microlet.yml": 1,
		"deploy/ansible/roles/microlet/tasks/gate.yml":     1,
	} {
		lines := commandLines.FindAllStringSubmatch(string(repositoryFile(t, path)), -1)
		if len(lines) < least {
			t.Errorf("%s: only %d command lines were found: %q", path, len(lines), lines)
		}
		for _, line := range lines {
			text := strings.ReplaceAll(line[1], "{{ microlet_timeout }}", "2m")
			cmd, rest, err := New().Find(strings.Fields(text))
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil && !cmd.HasSubCommands() && cmd.ValidateArgs(cmd.Flags().Args()) != nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: microlet %s: %v", path, text, err)
			}
		}
	}
}

// plan is plan.upgrade.cattle.io/v1, as far as the Plan uses it; the names are those of
// pkg/apis/upgrade.cattle.io/v1/types.go of rancher/system-upgrade-controller.
type plan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Concurrency           int64                 `json:"concurrency"`
		JobActiveDeadlineSecs *int64                `json:"jobActiveDeadlineSecs"`
		PostCompleteDelay     *metav1.Duration      `json:"postCompleteDelay"`
		NodeSelector          *metav1.LabelSelector `json:"nodeSelector"`
		ServiceAccountName    string                `json:"serviceAccountName"`
		Version               string                `json:"version"`
		Secrets               []struct {
			Name string `json:"name"`
			Path string `json:"path"`
		} `json:"secrets"`
		Upgrade struct {
			Image   string   `json:"image"`
			Command []string `json:"command"`
			Args    []string `json:"args"`
		} `json:"upgrade"`
	} `json:"spec"`
}

// The Plan of system-upgrade-controller has fields that there are, and calls the script of its Secret.
func TestUpgradePlan(t *testing.T) {
	documents := bytes.SplitN(repositoryFile(t, "deploy/system-upgrade-controller/plan.yaml"), []byte("\n---\n"), 2)
	var secret corev1.Secret
	var p plan
	if err := yaml.UnmarshalStrict(documents[0], &secret); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(documents[1], &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "upgrade.cattle.io/v1" || p.Kind != "Plan" || p.Namespace != secret.Namespace ||
		len(p.Spec.Secrets) != 1 || p.Spec.Secrets[0].Name != secret.Name {
		t.Fatalf("Plan %+v of the Secret %s", p, secret.Name)
	}
	inside, below := strings.CutPrefix(p.Spec.Secrets[0].Path, "/host") // what chroot makes of it
	if last := p.Spec.Upgrade.Args[len(p.Spec.Upgrade.Args)-1]; !below || !strings.Contains(last, inside+"/rollout.sh") {
		t.Errorf("the Plan runs %q, and the script is below %s", last, p.Spec.Secrets[0].Path)
	}
	if !slices.Equal(p.Spec.Upgrade.Command, []string{"chroot", "/host"}) {
		t.Errorf("the Plan runs %q", p.Spec.Upgrade.Command)
	}
	sh := exec.CommandContext(t.Context(), "sh", "-n")
	sh.Stdin = strings.NewReader(secret.StringData["rollout.sh"])
	if out, err := sh.CombinedOutput(); err != nil || len(secret.StringData["rollout.sh"]) == 0 {
		t.Errorf("sh -n: %v\n%s", err, out)
	}
}

// taskWords are what a task has beside its module.
var taskWords = []string{
	"name", "when", "register", "changed_when", "delegate_to", "become", "until", "retries", "delay", "vars", "loop",
	"block", "rescue",
}

// modules are those of ansible-core that the role uses.
var modules = []string{
	"apt", "assert", "command", "copy", "dpkg_selections", "fail", "include_tasks", "service_facts", "systemd",
}

// judgeTasks judges the names of a list of tasks: each has a name, one module, and files to include that are there.
func judgeTasks(t *testing.T, path string, tasks []map[string]json.RawMessage) {
	t.Helper()
	for _, task := range tasks {
		used := 0
		for word, value := range task {
			module, is := strings.CutPrefix(word, "ansible.builtin.")
			switch {
			case word == "block" || word == "rescue":
				var inner []map[string]json.RawMessage
				if err := json.Unmarshal(value, &inner); err != nil {
					t.Errorf("%s: %s: %v", path, task["name"], err)
				}
				judgeTasks(t, path, inner)
				if word == "block" {
					used++
				}
			case is && slices.Contains(modules, module):
				used++
			case !slices.Contains(taskWords, word):
				t.Errorf("%s: %s has %q", path, task["name"], word)
			}
			if module == "include_tasks" {
				included := strings.Trim(string(value), `"`)
				repositoryFile(t, filepath.Join(strings.TrimPrefix(filepath.Dir(path), repository), included))
			}
		}
		if used != 1 || len(task["name"]) == 0 {
			t.Errorf("%s: the task %s has %d modules", path, task["name"], used)
		}
	}
}

// The files of Ansible are YAML without a key that is twice in one place, and their tasks have modules that there are.
// Where Ansible is installed, it reads them too.
func TestAnsibleRole(t *testing.T) {
	dir := filepath.Join(repository, "deploy/ansible")
	files, err := filepath.Glob(filepath.Join(dir, "roles/microlet/*/*.yml"))
	if err != nil || len(files) < 6 {
		t.Fatalf("%q, %v", files, err)
	}
	known := regexp.MustCompile(`(?m)^microlet_\w+`).FindAllString(
		string(repositoryFile(t, "deploy/ansible/roles/microlet/defaults/main.yml")), -1)
	for _, path := range append(files, filepath.Join(dir, "rollout.yaml")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if filepath.Base(filepath.Dir(path)) == "tasks" {
			var tasks []map[string]json.RawMessage
			if err := json.Unmarshal(data, &tasks); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			judgeTasks(t, path, tasks)
		}
		made := regexp.MustCompile(`(?m)(?:register: |^    )(microlet_\w+)`).FindAllStringSubmatch(string(text), -1)
		for _, name := range regexp.MustCompile(`microlet_[a-z_]+`).FindAllString(string(text), -1) {
			if !slices.Contains(known, name) && !slices.ContainsFunc(made, func(m []string) bool { return m[1] == name }) &&
				filepath.Base(path) != "rollout.yaml" {
				t.Errorf("%s: nothing sets %s", path, name)
			}
		}
	}
	if _, err := exec.LookPath("ansible-playbook"); err != nil {
		t.Log("ansible-playbook is not installed, and reads nothing")
		return
	}
	cmd := exec.CommandContext(t.Context(), "ansible-playbook", "--syntax-check", "--inventory=localhost,", "rollout.yaml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("ansible-playbook --syntax-check: %v\n%s", err, out)
	}
}
