// Package nodelabel says which labels a node may give itself.
package nodelabel

import (
	"fmt"
	"slices"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// Problem is why a node may not give itself a label, and what is right. The zero one is none.
type Problem struct{ Why, Instead string }

// Problems are those of a label. The API server refuses it with the rest of the Node that has it.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
func Problems(key, value string) []Problem {
	var found []Problem
	if isKubernetesKey(key) && !kubeletapis.IsKubeletLabel(key) {
		found = append(found, Problem{
			"a node may not give itself this label of Kubernetes' own namespace",
			fmt.Sprintf("use a prefix of %s or one of %s", strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "),
				strings.Join(kubeletapis.KubeletLabels(), ", ")),
		})
	}
	for _, why := range append(utilvalidation.IsQualifiedName(key), utilvalidation.IsValidLabelValue(value)...) {
		found = append(found, Problem{why, "correct the label"})
	}
	return found
}

func isKubernetesKey(key string) bool {
	namespace, _, ok := strings.Cut(key, "/")
	return ok && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(own string) bool {
		return namespace == own || strings.HasSuffix(namespace, "."+own)
	})
}
