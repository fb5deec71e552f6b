package podtemplates

import (
	"slices"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name, file   string
		want, others []string
		manifest     string
	}{
		{"a pod", "kind: Pod\nmetadata: {name: a}\n", []string{"Pod a"}, nil, "kind: Pod"},
		{"two documents", "---\nkind: Service\nmetadata: {name: s}\n---\nkind: Pod\nmetadata: {name: a, namespace: shop}\n",
			[]string{"Pod shop/a"}, []string{"Service s"}, ""},
		{"a deployment", "kind: Deployment\nmetadata: {name: web, namespace: shop}\n" +
			"spec: {template: {metadata: {labels: {a: b}}, spec: {containers: []}}}\n", []string{"Deployment shop/web"}, nil,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"},"name":"web","namespace":"shop"},` +
				`"spec":{"containers":[]}}`},
		{"a cron job", "kind: CronJob\nmetadata: {name: c}\nspec: {jobTemplate: {spec: {template: {spec: {}}}}}\n",
			[]string{"CronJob c"}, nil, `"name":"c"`},
		{"a list", `{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"a"}},{"kind":"ConfigMap"}]}`,
			[]string{"Pod a"}, []string{"ConfigMap "}, `"kind":"Pod"`},
		{"a list of pods", `{"kind":"PodList","items":[{"metadata":{"name":"a"}}]}`, []string{"Pod a"}, nil,
			`"apiVersion":"v1"`},
		{"nothing", "---\n---\n", nil, nil, ""},
	} {
		pods, others, err := Find([]byte(c.file))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var of []string
		for _, p := range pods {
			of = append(of, p.Of)
			if !strings.Contains(string(p.Manifest), c.manifest) {
				t.Errorf("%s: %s lacks %s", c.name, p.Manifest, c.manifest)
			}
		}
		if !slices.Equal(of, c.want) || !slices.Equal(others, c.others) {
			t.Errorf("%s: pods of %q and others %q, want %q and %q", c.name, of, others, c.want, c.others)
		}
	}
}

func TestFilesThatAreNoManifests(t *testing.T) {
	for file, want := range map[string]string{
		"a: b\n":                          "document 1: it has no kind",
		"just words":                      "document 1 is neither YAML nor JSON of an object",
		"kind: [\n":                       "document 1 is neither YAML nor JSON",
		"kind: Job\n":                     "Job  has no spec: a Job needs a pod template there",
		"kind: List\nitems: [3]\n":        "items[0] is no object",
		"kind: Deployment\nspec: three\n": "has no spec",
		"kind: Pod\n---\n- a\n- b\n":      "document 2 is neither YAML nor JSON of an object",
	} {
		if _, _, err := Find([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add([]byte("kind: List\nitems: [{kind: Pod}]\n---\nkind: CronJob\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, _, err := Find(data)
		if err != nil && len(pods) > 0 {
			t.Error("pods beside an error")
		}
	})
}
