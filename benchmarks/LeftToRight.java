import cc.mallet.topics.MarginalProbEstimator;
import cc.mallet.types.Alphabet;
import cc.mallet.types.FeatureSequence;
import cc.mallet.types.Instance;
import cc.mallet.types.InstanceList;
import cc.mallet.pipe.Noop;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Prints MALLET's left-to-right estimates of given documents, a run a line.
 *
 *  Arguments: a file, particles, runs. The file's first line is "topics words beta", the
 *  second alpha, then a line a word with how often each topic uttered it, then a line a
 *  document with the numbers of its words.
 */
public class LeftToRight {
    public static void main(String[] arguments) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(arguments[0]));
        int particles = Integer.parseInt(arguments[1]);
        int runs = Integer.parseInt(arguments[2]);
        String[] sizes = lines.get(0).split(" ");
        int topics = Integer.parseInt(sizes[0]), words = Integer.parseInt(sizes[1]);
        double beta = Double.parseDouble(sizes[2]), alphaSum = 0;
        double[] alpha = new double[topics];
        for (int k = 0; k < topics; k++)
            alphaSum += alpha[k] = Double.parseDouble(lines.get(1).split(" ")[k]);

        // MALLET keeps a count and its topic in one number: the topic in the lowest bits.
        int bits = Integer.SIZE - Integer.numberOfLeadingZeros(topics - 1);
        if (Integer.bitCount(topics) != 1)
            bits = Integer.bitCount(Integer.highestOneBit(topics) * 2 - 1);
        int[][] counts = new int[words][topics];
        int[] total = new int[topics];
        for (int w = 0; w < words; w++) {
            String[] row = lines.get(2 + w).split(" ");
            int place = 0;
            for (int k = 0; k < topics; k++) {
                int count = Integer.parseInt(row[k]);
                total[k] += count;
                if (count > 0)
                    counts[w][place++] = (count << bits) + k;
            }
        }

        Alphabet alphabet = new Alphabet();
        for (int w = 0; w < words; w++)
            alphabet.lookupIndex("w" + w);
        InstanceList documents = new InstanceList(new Noop(alphabet, null));
        for (String line : lines.subList(2 + words, lines.size())) {
            String[] ids = line.split(" ");
            FeatureSequence sequence = new FeatureSequence(alphabet, ids.length);
            for (String id : ids)
                sequence.add(Integer.parseInt(id));
            documents.add(new Instance(sequence, null, null, null));
        }

        MarginalProbEstimator estimator =
            new MarginalProbEstimator(topics, alpha, alphaSum, beta, counts, total);
        for (int run = 0; run < runs; run++) {
            estimator.setRandomSeed(run + 1);
            ByteArrayOutputStream found = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(found);
            estimator.evaluateLeftToRight(documents, particles, true, out);
            out.flush();
            System.out.println(found.toString().trim().replaceAll("\\s+", " "));
        }
    }
}
